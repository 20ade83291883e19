"""Writes the files that follow from the table of metrics."""

from testing.monitoring import files

for path, text in files().items():
    path.write_text(text, encoding="utf-8")
    print(path)
