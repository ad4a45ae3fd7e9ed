"""How located samples become arrays, one file a kind of sample. No torch here."""
