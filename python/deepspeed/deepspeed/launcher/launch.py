"""`python -m deepspeed.launcher.launch`: the ranks of this host."""

from deepspeed.launcher.runner import main

if __name__ == "__main__":
    main()
