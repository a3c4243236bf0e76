"""The faults that a sweep must survive, each brought about on purpose and looked at afterwards."""
