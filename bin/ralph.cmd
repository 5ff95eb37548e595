@echo ralph: Windows is not supported; use it inside WSL2 (wsl --install) 1>&2 & exit /b 2
