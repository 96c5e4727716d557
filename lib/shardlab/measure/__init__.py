"""What a step costs: `memory`, `throughput`, `traffic`."""
