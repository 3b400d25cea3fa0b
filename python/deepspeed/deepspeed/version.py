version = "0.19.8"
