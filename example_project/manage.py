"""Django's command line for the example: `python -m example_project.manage COMMAND`."""

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.config.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
