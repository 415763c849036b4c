"""The colours of lines and areas, in pictures and on the page."""

# The palette of Okabe and Ito, which people with any kind of colour vision can tell apart, with grey in the place of
# its yellow, in which a line on white is hardly seen.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
