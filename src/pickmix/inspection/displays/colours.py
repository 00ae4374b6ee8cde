"""Colours of all pictures.

Okabe and Ito's: they stay apart for every common kind of colour blindness.
"""

BLACK, GREY, BLUE, SKY = "#000000", "#7f7f7f", "#0072B2", "#56B4E9"
GREEN, ORANGE, VERMILION, PURPLE = "#009E73", "#E69F00", "#D55E00", "#CC79A7"
# Three of Tol's muted ones, for more than seven things.
WINE, OLIVE, INDIGO = "#882255", "#999933", "#332288"
# Of text and thin reference lines, and of the grid.
INK, GRID = "#333333", "#e6e6e6"
