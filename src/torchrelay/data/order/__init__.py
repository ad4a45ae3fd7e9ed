"""Which sample every slot of a run is, as pure functions."""
