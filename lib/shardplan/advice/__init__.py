"""Advice on a plan: `bottleneck`, its limit in words; `changes`, single ones and their price; `advice`, what helps."""
