"""Lab 7: on call. Four broken programs, each repaired by the student and run again on real ranks: does it still do its
whole job, and is the fault gone? Two tools beside them, judged on evidence that is drawn at grading time.

`*_run` stand on the ranks (a drill, and our own repair of the program), the files without it judge."""
