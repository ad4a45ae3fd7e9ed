"""Words every part shares: errors, units, records, plug-ins, the clock."""
