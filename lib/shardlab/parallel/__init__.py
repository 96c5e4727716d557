"""Ways for N ranks to train one model. Read in this order: `ddp`."""
