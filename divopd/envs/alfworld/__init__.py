"""ALFWorld, text only: household tasks played as text games."""

from divopd.envs.alfworld.env import AlfworldEnv
from divopd.envs.alfworld.games import GameSource, GeneratedGames, OfficialGames

__all__ = ["AlfworldEnv", "GameSource", "GeneratedGames", "OfficialGames"]
