"""What runs on the controller: the check engine and the report writers. Nothing here touches a host."""
