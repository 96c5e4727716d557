"""From submitted folders to nbgrader's gradebook.

`nbgrader_classroom` calls nbgrader's API. `grade_class` puts each submission into the `queue`, cleaned, with its files
and digests. A `worker` judges what is in the queue, and `result_cache` stores the result. Then nbgrader records it: its
`nbgrader_preprocessor` takes the stored result, or asks the judge. `inspect_files` rejects hostile files;
`normalise_notebook` keeps what grading needs of a notebook, and repairs it; both are `limited`. `submitted_folders`
says who handed in. `convert_student_folder` lets nbgrader replace nothing before its successor is there.
`error_advice` says in words why there is no grade. `hub_exchange` collects from a hub.
"""
