"""``python -m kopf`` is the same as ``kopf``."""

from kopf.cli import main

if __name__ == '__main__':
    main(prog_name='kopf')
