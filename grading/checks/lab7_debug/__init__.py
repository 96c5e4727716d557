"""Lab 7: on call. The student repairs four broken programs, which run again on real ranks, and writes two tools.

A repaired program must still do its whole job, and its fault must be gone. The tools are judged on evidence that is
drawn at grading time. The `*_training` files and `tools_on_ranks` run on the ranks: drills, and our own repairs.
The `judge_*` files judge; `judge_forward_passes` belongs to `judge_hang`.
"""
