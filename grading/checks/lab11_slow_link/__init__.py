"""Lab 11: train at sites that a slow link joins, and choose how often they talk.

Three checks look at the same class on ranks: rounds in step, messages that arrive late, and sites that miss rounds. A
fourth reads in the network's record what crossed between sites, and when. The last one judges a choice by arithmetic.
"""
