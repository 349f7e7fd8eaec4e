"""What must hold of the contract and of the rules beside it."""
