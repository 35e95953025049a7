"""What a suite will cost before it is run: shapes, rates, costs of a cell, and scaling on the virtual clock."""
