"""This machine: what isolation it offers, how well each limit holds here, and how much there is room for."""
