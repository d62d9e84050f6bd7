"""Records a run: `recorder` one forward pass, `search` one translation, `trace` what they return."""
