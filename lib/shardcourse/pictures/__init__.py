"""One picture that explains for each lesson, drawn without any measurement. Each file draws one: `draw()`."""
