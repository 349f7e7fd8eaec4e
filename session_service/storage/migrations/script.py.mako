"""${message}."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Makes the change."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Takes it back."""
    ${downgrades if downgrades else "pass"}
