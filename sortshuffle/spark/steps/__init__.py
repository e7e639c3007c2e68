"""Steps that operators put into stages. Tasks import them; nothing here plans.

row_steps         whole rows: the first ones, some by chance, those of a union's input
local_sort        the rows of one task in order
"""
