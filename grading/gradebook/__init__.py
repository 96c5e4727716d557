"""From submitted folders to nbgrader's gradebook.

`classroom` calls nbgrader's API; `grade_class`, `queue` and `worker` judge a class; `nbgrader_executor` puts verdicts
into a notebook; `result_cache` stores what was judged; `inspect_files` rejects hostile files.
"""
