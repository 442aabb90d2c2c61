"""All tables by name."""

from controlvae.paper.disentangling_tables import DISENTANGLING_TABLES
from controlvae.paper.image_tables import IMAGE_TABLES
from controlvae.paper.text_tables import TEXT_TABLES

TABLES = {table.name: table for table in (*DISENTANGLING_TABLES, *IMAGE_TABLES, *TEXT_TABLES)}
