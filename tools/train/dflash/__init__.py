"""DFlash 2 drafters: model, targets, data, training loop, evaluation, export."""
