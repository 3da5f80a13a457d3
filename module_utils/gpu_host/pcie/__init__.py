"""PCI Express: devices, configuration space, lspci, Access Control Services."""
