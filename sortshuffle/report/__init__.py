"""Reports: what the map outputs of an exchange hold, and what to change first, as figures and as a page.

exchanges       adds up map outputs
heat_map        the bytes of regions by subpartition, in few cells
arrow_rows      decodes rows, also for `sortshuffle dump`
samples         what columns take, and which values make a subpartition large, from some of the rows
application     what an application did: its stages, the steps of its tasks, where rows crossed
findings        an exchange with its samples, and the advice that follows
plots           pictures, drawn by matplotlib
page            the page for a browser; application_section is its part on an application
"""
