"""The kernel log: its lines in every form, the messages that stand for a fault, Xid numbers."""
