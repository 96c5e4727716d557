"""What limits a plan, and what would help: `bottleneck` in words; `changes`, single ones and their price; `advice`."""
