"""What the lessons measure: jobs, programs and harnesses, each explained in the lesson that uses it."""
