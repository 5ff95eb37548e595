@echo ralph: not on Windows itself: use it inside WSL2 (wsl --install) 1>&2 & exit /b 2
