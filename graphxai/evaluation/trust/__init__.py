"""How far an explanation can be trusted: signs, each with its evidence."""
