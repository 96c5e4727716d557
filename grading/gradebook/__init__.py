"""From submitted folders to nbgrader's gradebook.

`nbgrader_api` calls nbgrader's API; `grade_class`, `queue` and `worker` judge a class; `nbgrader_executor` puts
verdicts into a notebook; `result_cache` stores what was judged; `inspect_files` rejects hostile files.
"""
