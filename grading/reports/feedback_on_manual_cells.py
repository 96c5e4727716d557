"""What a feedback page says of written arguments: graded by hand, or still to be graded; the rubric is not shown."""

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from grading.gradebook.manually_graded_cells import RUBRIC, is_written, less_penalty, written


class TellWritten(NbGraderPreprocessor):
    """Give each written argument its state in words, and the page the points of the checks alone as its total."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        nb.cells = [cell for cell in nb.cells if RUBRIC not in cell.metadata.get("tags", [])]
        with Gradebook(about["db_url"]) as gradebook:
            submission = gradebook.find_submission_notebook(about["notebook"], about["assignment"], about["student"])
            by_hand = [written(grade, nb) for grade in submission.grades if is_written(grade)]
        for cell in filter(is_written, nb.cells):
            cell.metadata.nbgrader["written"] = next(
                w.text for w in by_hand if w.cell == cell.metadata.nbgrader.grade_id
            )
        points = sum(w.points or 0.0 for w in by_hand)
        checks = about["score"] + about["late_penalty"] - points  # nbgrader counts what nobody has graded as 0
        about["score"], _ = less_penalty(checks, points, about["late_penalty"])
        about["max_score"] -= sum(w.max_points for w in by_hand)
        about["written"] = [w.text for w in by_hand]
        return nb, resources
