"""Settings of nbgrader for this repository: `nbgrader ... --config=grading/nbgrader_config.py`, or run it in grading/.

solutions/ is nbgrader's source and labs/ its release; submissions, autograded notebooks, feedback and the gradebook are
in grading/ and are not tracked.
"""

from importlib.util import find_spec
from pathlib import Path

c = get_config()  # noqa: F821  (nbgrader's loader defines it)

course = Path(__file__).resolve().parent.parent

c.CourseDirectory.course_id = "shardlab"
c.CourseDirectory.root = str(course)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.db_url = f"sqlite:///{course}/grading/gradebook.db"
# Python files, caches and rubrics in solutions/<lab>/ are not released.
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.py", "*.md"]

c.Autograde.exporter_class = "grading.gradebook.inspect_files.SubmissionReader"
c.Autograde.sanitize_preprocessors = [
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "grading.gradebook.manually_graded_cells.WrittenCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "grading.gradebook.nbgrader_preprocessor.RefereeExecutor",  # instead of nbgrader's Execute
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "grading.gradebook.manually_graded_cells.ShowRubric",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "grading.reports.feedback_on_manual_cells.TellWritten",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
c.ClearSolutions.text_stub = "*Your argument here, up to 150 words.*"  # manually_graded_cells.STUB
c.ClearMetadataPreprocessor.preserve_nb_metadata_mask = {("language_info", "name"), "shardlab"}  # what was repaired
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}
c.Execute.timeout = 600  # of a cell, for Validate in a student's JupyterLab: a race takes longer than nbgrader's 30 s
c.RefereeExecutor.shelf = str(course / "grading" / "judged")

c.HTMLExporter.sanitize_html = True  # of feedback, and of formgrader's pages
c.HTMLExporter.filters = {
    "clean_html": "grading.boxes.sanitise_html_and_outputs.clean_html",
    "markdown2html": "grading.reports.markdown_to_html.markdown_of_cell",
    "verdict_html": "grading.boxes.sanitise_html_and_outputs.verdict_html",
}
c.ExchangeFactory.collect = "grading.gradebook.hub_exchange.Collect"
c.ExchangeFactory.release_feedback = "grading.gradebook.hub_exchange.ReleaseFeedback"
# zip_collect finds <student>/<lab>.ipynb, also with Moodle's suffix, and Canvas's <student>_1_2_<lab>.ipynb.
c.ZipCollectApp.downloaded_directory = "grading/downloaded"
c.ZipCollectApp.extractor_plugin = "grading.gradebook.collect_archive.Extractor"
c.ZipCollectApp.collector_plugin = "grading.gradebook.collect_archive.Collector"
c.FileNameCollectorPlugin.named_regexp = (
    r"(?P<student_id>[^/]+?)((_late)?_\d+_\d+(?=_lab)|_\d+_assignsubmission_file_?(?=/))?[/_]"
    r"(?P<file_id>lab\d+_[a-z_]+)(-\d+| ?\(\d+\))?\.ipynb$"
)
formgrader = Path(find_spec("nbgrader").origin).parent / "server_extensions" / "formgrader" / "templates"
c.HTMLExporter.extra_template_basedirs = [str(course / "grading" / "reports" / "templates"), str(formgrader)]
