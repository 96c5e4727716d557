"""From submitted folders to nbgrader's gradebook.

`commands` are the instructor's; `classroom` speaks nbgrader's API; `grade_class`, `queue` and `worker` judge a class;
`nbgrader_executor` puts verdicts into a notebook; `result_cache` remembers what was judged; `inspect_files` and
`sanitise` keep hostile files and pages from doing harm.
"""
