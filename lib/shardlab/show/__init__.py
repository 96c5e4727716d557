"""What a cell or a command ends with: figures (`plots`), widgets, tables for a terminal (`plan_table`, `matrix_table`,
`claims_table`), source code and error reports (`text`)."""
