"""WebShop, text only: find and buy the product that an instruction asks for."""

from divopd.envs.webshop.catalog import Catalog, Product, load_catalog
from divopd.envs.webshop.env import WebshopEnv
from divopd.envs.webshop.fixes import STRICT, Fixes
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.splits import tasks_of

__all__ = ["STRICT", "Catalog", "Fixes", "Goal", "Product", "WebshopEnv", "load_catalog", "tasks_of"]
