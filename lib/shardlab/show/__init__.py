"""What a lesson's cell ends with: figures (`plots`), source code and error reports (`text`).

They show what they are given, and compute nothing that is taught.
"""
