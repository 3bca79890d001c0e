"""A LightningModule that reads digits row by row, trained asynchronously."""
