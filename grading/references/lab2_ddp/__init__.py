"""What a judge asks for in lab 2: how early any plan of buckets can end."""

from grading.references.lab2_ddp.best_bucket_plan import ON_RANKS, asked, earliest_finish, finish_of_best_cap

__all__ = ["ON_RANKS", "asked", "earliest_finish", "finish_of_best_cap"]
