"""The column has another name than the collate function expects."""

rows = [{"text": "a sentence"}]
batch = [row["input_ids"] for row in rows]
