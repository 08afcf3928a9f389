"""Who can send what to whom: the Group protocol and its in-process implementation."""
