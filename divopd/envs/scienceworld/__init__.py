"""ScienceWorld: school experiments played as text games, on the engine of the scienceworld package."""
