"""Measure what a step costs: bytes held, bytes sent, and seconds.

Read in this order:

    ledger, memory_events_outside_dispatch, memory, budget        bytes held
    traffic, functional_calls, store_writes     bytes sent
    step_time                                   seconds
"""
