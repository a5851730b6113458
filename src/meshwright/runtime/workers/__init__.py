"""Workers in other processes: started, given their programs, connected with each other, and watched until they end."""
